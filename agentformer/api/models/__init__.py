"""What the endpoints take and give, as the OpenAPI document tells it."""
