"""Steps computed: plans run by programs, copies of cells and states, the tokens that follow."""
