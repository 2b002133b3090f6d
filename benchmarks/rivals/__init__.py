"""What `cpu_rivals.py` compares: the same sessions, each in the way that its library recommends."""
