"""Pure functions over text: normalising, cutting, analysing. Nothing here does input or output."""
