W=/work/wt/f-break18/.venv/bin/warmlog
$W serve --data-dir /tmp/b18/d --listen 127.0.0.1:7518 >/tmp/b18/serve.log 2>&1 & echo $! >/tmp/b18/serve.pid
sleep 1
