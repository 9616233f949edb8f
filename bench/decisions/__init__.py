"""Decision sets: chat requests, each with whether a call is due at its decision."""
