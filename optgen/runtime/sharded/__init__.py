"""Steps of sharded parameters (DTensor): collectives, consensus of the ranks, and their driver."""
