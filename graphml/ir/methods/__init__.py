"""The methods of the builder, one file a family: functions whose first argument is the builder.

Shapes in docstrings: T tokens of this step, O rows whose logits are wanted, S sequences, B cache blocks of a
sequence, C cache cells; d width of a head; N rows and K columns of a matrix, E matrices. What an architecture
calls an activation is f32; a weight may be of any dtype unless it says otherwise.

`name` is what the node is called, behind the scopes; without it the op's name.
"""
