"""Language models behind one small protocol; each file is one provider."""
