"""Pure functions over text: normalise, split and analyze. This package does no input or output."""
