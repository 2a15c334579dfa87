"""Graph attention, with the constructors, calls and state dicts of PyTorch Geometric's layers."""

from anyscore.torch.graphs.gat import GATConv
from anyscore.torch.graphs.gatv2 import GATv2Conv
from anyscore.torch.graphs.transformer import TransformerConv

__all__ = ["GATConv", "GATv2Conv", "TransformerConv"]
