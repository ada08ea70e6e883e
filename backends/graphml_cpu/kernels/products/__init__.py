"""Products with weights, and the conversion of activations to what they are multiplied as."""
