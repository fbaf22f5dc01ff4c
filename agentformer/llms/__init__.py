"""Language models. Each provider of models has its own module. The rest of the package calls a language model only
through the class `GuardedModel` of the module `guarded`."""
