"""Mixture of experts: routing, products with the matrices of chosen experts, their weighted sum."""
