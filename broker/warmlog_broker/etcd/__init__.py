"""etcd, by which the brokers of a cluster agree."""
