"""`warmlog acl`: what principals may do."""
