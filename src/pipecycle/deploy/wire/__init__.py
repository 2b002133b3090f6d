"""What travels between nodes and server."""
