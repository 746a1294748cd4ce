"""Consumer: subscription, fetches ahead, positions, iteration."""

from warmlog.consumer.consumer import Consumer

__all__ = ["Consumer"]
