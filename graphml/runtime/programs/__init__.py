"""An open model: its graphs, compiled programs, weights and options, and how it is opened."""
