"""Settings: what can be set (`fields`), and where it comes from (`loading`)."""

from agentformer.settings.fields import Route, Settings
from agentformer.settings.loading import load_settings, parse_routes

__all__ = ["Route", "Settings", "load_settings", "parse_routes"]
