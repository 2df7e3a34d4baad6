"""Prior blocks that models share by composition."""
