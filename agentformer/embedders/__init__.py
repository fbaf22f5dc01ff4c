"""Embedders behind one small protocol; each file is one provider, and heavy imports stay inside it."""
