"""The methods of the builder, one file a family: functions whose first argument is the builder.

Shapes in docstrings: T tokens of this step, O output rows, S sequences, B cache blocks of a
sequence, C cache cells; d width of a head; N rows and K columns of a matrix, E matrices. Activations are
f32; a weight may be of any dtype unless the method says otherwise.

`name` is the node's name after the scopes, by default the op's name.
"""
