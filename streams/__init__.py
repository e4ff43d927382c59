"""Kafka moves work through the machine: the transport, the agents that run on it, and the sweeps."""
