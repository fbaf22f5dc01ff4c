"""The settings of a memory: their fields, and how they are read."""

from agentformer.settings.fields import Route as Route
from agentformer.settings.fields import Settings as Settings
from agentformer.settings.loading import ENV_PREFIX as ENV_PREFIX
from agentformer.settings.loading import load_settings as load_settings
from agentformer.settings.loading import parse_routes as parse_routes
from agentformer.settings.loading import unused_values as unused_values
