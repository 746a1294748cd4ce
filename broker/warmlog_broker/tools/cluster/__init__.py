"""The work of operators on a cluster, by its keys in etcd: create it, look at it, change what no broker changes."""
