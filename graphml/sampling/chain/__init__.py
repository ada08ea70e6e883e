"""The chain of filters that settings make, and the next token by it: from a row of logits, or its top k."""
