"""`warmlog cluster …`: the brokers of a cluster, as etcd has them."""
