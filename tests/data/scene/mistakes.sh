kubectl label node a SCENCE=1 CASE=1 INDEX=0
kubectl label node b SCENCE=1 CASE=1 INDEX=0
kubectl label node a CASE=2
kubectl label node c SCENCE=1 CASE=1 INDEX=02
kubectl label node d SCENCE=1 CASE=1 INDEX=4
kubectl label node e SCENCE=1 CASE=1 INDEX=1 TYPE=ps
kubectl label node f SCENCE=1 \
  CASE=1
kubectl label node $node SCENCE=1 CASE=? INDEX=?
kubectl label node g SCENCE=1 CASE=? INDEX=1
kubectl label node g SCENCE = 1
kubectl label node g SCENCE=1 SCENCE-
kubectl label nodes --all SCENCE=1
kubectl label nodes -l zone=east SCENCE=1
kubectl label node SCENCE=1
kubectl label node g
kubectl label node/g pod/h SCENCE=1
for n in a b; do kubectl label node a INDEX=1; done
kubectl label pods h SCENCE=1
kubectl label node h SCENCE=1 "CASE=1
