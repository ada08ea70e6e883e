"""Is an architecture right? Its graph in float32 against what another program computed, layer by layer."""
