"""Fine-tuning: low-rank adapters of a model, trained through its graph by PyTorch.

Data goes one way: `examples` reads texts, `factors` chooses matrices, `training` makes steps, `run` keeps
files. `training` alone imports torch.
"""
