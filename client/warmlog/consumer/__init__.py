"""Consumer: subscription, fetches ahead, positions, iteration."""
