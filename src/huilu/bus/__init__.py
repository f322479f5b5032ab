"""The durable road of episodes and feedback: issue, append, claim, apply, acknowledge, account. No torch."""
