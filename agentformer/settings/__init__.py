"""Settings: their types, defaults and checks (`fields`), and their sources (`loading`)."""

from agentformer.settings.fields import Route, Settings
from agentformer.settings.loading import load_settings, parse_routes

__all__ = ["Route", "Settings", "load_settings", "parse_routes"]
