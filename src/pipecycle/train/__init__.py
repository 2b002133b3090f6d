"""Training: from a schedule to models."""
