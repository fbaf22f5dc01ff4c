"""The settings: `fields` defines their types, defaults and checks, and `loading` reads their values."""

from agentformer.settings.fields import Route, Settings
from agentformer.settings.loading import load_settings, parse_routes, unused_values

__all__ = ["Route", "Settings", "load_settings", "parse_routes", "unused_values"]
