{{/*
The parts of the DaemonSet that kustomize adds by a patch. deploy/generate makes the patches of the overlays and
components from these parts and from deploy/patches.
*/}}

{{- define "pinfold.systemd.mounts" -}}
- name: dbus
  mountPath: /run/dbus
  readOnly: true
{{- end }}

{{- define "pinfold.systemd.volumes" -}}
# The folder of D-Bus's socket, through which root may set properties of systemd's units. The folder is mounted rather
# than the socket, because D-Bus makes a new socket each time it starts. On a node without D-Bus the folder is made and stays empty, so that the pod starts
# there, too.
- name: dbus
  hostPath:
    path: /run/dbus
    type: DirectoryOrCreate
{{- end }}

{{- define "pinfold.resctrl.mounts" -}}
# The mount is writable, because the agent makes monitoring groups. The groups limit nothing.
- name: resctrl
  mountPath: /sys/fs/resctrl
{{- end }}

{{- define "pinfold.resctrl.volumes" -}}
- name: resctrl
  hostPath:
    path: /sys/fs/resctrl
    type: Directory
{{- end }}

{{- define "pinfold.crio.env" -}}
# CRI-O with systemd always uses this tree.
- name: PINFOLD_POD_CGROUPS
  value: kubepods.slice
{{- end }}

{{- define "pinfold.crio.security" -}}
# container_t may neither write cgroups nor use D-Bus. Without SELinux the option has no effect.
seLinuxOptions:
  type: spc_t
{{- end }}

{{- define "pinfold.observe.env" -}}
# The agent does not change containers before their start.
- name: PINFOLD_NRI
  value: never
{{- end }}

{{- define "pinfold.observe.cgroup" -}}
readOnly: true
# With cgroup v1 each controller is a separate mount below this mount.
recursiveReadOnly: IfPossible
{{- end }}

{{/* The agents' tolerations. A node keeps the startup taint until its agent runs, so every agent tolerates this taint. */}}
{{- define "pinfold.tolerations" -}}
{{- $tolerations := .Values.tolerations -}}
{{- if not (has (dict "operator" "Exists") $tolerations) -}}
{{- $tolerations = append $tolerations (dict "key" "pinfold.io/agent-not-ready" "operator" "Exists") | uniq -}}
{{- end -}}
{{- toYaml $tolerations -}}
{{- end }}

{{/* The variables of the agent that the chart sets. */}}
{{- define "pinfold.env" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: PINFOLD_CGROUP_DIR
  value: /host/cgroup
- name: PINFOLD_ENFORCEMENT
  value: {{ .Values.enforcement }}
{{- if ne .Values.placementSource "auto" }}
- name: PINFOLD_PLACEMENT_SOURCE
  value: {{ .Values.placementSource }}
{{- end }}
- name: PINFOLD_LISTEN
  # The kubelet and Prometheus connect from outside of the pod.
  value: 0.0.0.0:{{ .Values.port }}
{{- if eq .Values.enforcement "observe" }}
{{ include "pinfold.observe.env" . }}
{{- else if ne .Values.nriSocket "/var/run/nri/nri.sock" }}
- name: PINFOLD_NRI_SOCKET
  value: {{ .Values.nriSocket | quote }}
{{- end }}
{{- if eq .Values.runtime "crio" }}
{{ include "pinfold.crio.env" . }}
{{- end }}
{{- with .Values.reserved }}
- name: PINFOLD_RESERVED
  value: {{ . | quote }}
{{- end }}
{{- if ne (toString .Values.sharedMinimum) "" }}
- name: PINFOLD_SHARED_MINIMUM
  value: {{ .Values.sharedMinimum | quote }}
{{- end }}
{{- with .Values.log.level }}
- name: PINFOLD_LOG_LEVEL
  value: {{ . | quote }}
{{- end }}
{{- with .Values.log.format }}
- name: PINFOLD_LOG_FORMAT
  value: {{ . }}
{{- end }}
{{- if .Values.config }}
- name: PINFOLD_CONFIG
  value: /etc/pinfold/pinfold.yaml
{{- end }}
{{- end }}

{{/*
Further variables. If a name occurs twice, the order decides about the value, and server-side apply refuses the list.
*/}}
{{- define "pinfold.extraEnv" -}}
{{- $names := list -}}
{{- range include "pinfold.env" . | fromYamlArray }}{{ $names = append $names .name }}{{ end -}}
{{- range .Values.extraEnv -}}
{{- if has .name $names -}}
{{- fail (printf "extraEnv has %s, which the chart or an earlier entry sets" .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- toYaml .Values.extraEnv -}}
{{- end }}
