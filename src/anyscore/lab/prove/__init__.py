"""Published findings on attention scores, reproduced on this machine."""
