"""Language models. Each provider of models has its own module."""
