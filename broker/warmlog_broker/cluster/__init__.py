"""One broker of several: its replicas, and what it says to the others. Imported only with `cluster.etcd`."""
