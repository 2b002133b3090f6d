"""What runs beside the SuperLink."""
