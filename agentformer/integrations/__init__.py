"""Adapters for agent frameworks: one module and one extra for each framework. Import the module of the framework, such
as `agentformer.integrations.langchain`; the package of the framework must be installed."""
