#!/bin/sh
# Scene 1, case 2: typed one by one.
kubectl label node node-a SCENCE=1 CASE=2 INDEX=0
$ kubectl label nodes node-b SCENCE=1 CASE=2 INDEX=1   # with a prompt
sudo kubectl --context lab -n default label no node-c \
    SCENCE=1 CASE=2 \
    'INDEX'="2"
# The first try was wrong.
kubectl label node node-d SCENCE=1 CASE=9 INDEX=7 TYPE=worker; kubectl label node node-d --overwrite CASE=2 INDEX=3 TYPE-
kubectl label node/node-e SCENCE=1 CASE=2 INDEX=4 zone=east && kubectl get nodes --show-labels

# Scene 2, case 1: several nodes in a line, and what is different afterwards.
kubectl label nodes node-f node-g SCENCE=2 CASE=1 TYPE=ps
KUBECONFIG=~/.kube/lab kubectl label --overwrite nodes/node-g TYPE=worker INDEX=0
kubectl label node node-f INDEX=0
# Labelled by mistake, and taken back.
kubectl label node node-h SCENCE=2 CASE=1
kubectl label node node-h SCENCE- CASE-
