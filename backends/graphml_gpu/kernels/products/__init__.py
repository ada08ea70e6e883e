"""Products with weights: mat-vec and mat-mul."""
