"""When2Call through the proxy."""
