"""One broker of several: its replicas, what it fetches from leaders and answers to followers. Only with
`cluster.etcd`."""
