"""Steps as data: what of which sequences a step computes, and the inputs of a program that follow from it."""
