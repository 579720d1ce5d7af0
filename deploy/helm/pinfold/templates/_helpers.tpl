{{/* The value of the label app.kubernetes.io/name. */}}
{{- define "pinfold.name" -}}
{{- .Values.nameOverride | default .Chart.Name }}
{{- end }}

{{/*
The name of the DaemonSet, and the start of the other objects' names. The names do not contain the release's name: a
cluster has one installation, and the documentation and the messages name the objects.
*/}}
{{- define "pinfold.fullname" -}}
{{- .Values.fullnameOverride | default (include "pinfold.name" .) }}
{{- end }}

{{/*
The labels of the agents' pods for selectors. The labels do not contain the release's name: a selector can't be changed,
and a release with a different name may take over an installation.
*/}}
{{- define "pinfold.selector" -}}
app.kubernetes.io/name: {{ include "pinfold.name" . }}
{{- end }}

{{- define "pinfold.labels" -}}
{{ include "pinfold.selector" . }}
app.kubernetes.io/instance: {{ .Release.Name | toYaml }}
{{- end }}

{{/* The labels by which `pinfold status --cluster` and similar commands find the agents' pods. The labels are the same for all values. */}}
{{- define "pinfold.agent.labels" -}}
app.kubernetes.io/part-of: pinfold
app.kubernetes.io/component: agent
{{- end }}

{{/* The labels of the reclaimer's pods for selectors. */}}
{{- define "pinfold.reclaim.selector" -}}
app.kubernetes.io/name: {{ include "pinfold.name" . }}-reclaim
{{- end }}

{{- define "pinfold.reclaim.labels" -}}
{{ include "pinfold.reclaim.selector" . }}
app.kubernetes.io/instance: {{ .Release.Name | toYaml }}
{{- end }}

{{/* The labels of the pods that install pinfold-runtime. */}}
{{- define "pinfold.runtime.selector" -}}
app.kubernetes.io/name: {{ include "pinfold.name" . }}-runtime
{{- end }}

{{- define "pinfold.runtime.labels" -}}
{{ include "pinfold.runtime.selector" . }}
app.kubernetes.io/instance: {{ .Release.Name | toYaml }}
{{- end }}

{{/* The agents' service account. */}}
{{- define "pinfold.serviceAccount" -}}
{{- if or .Values.serviceAccount.create .Values.serviceAccount.name -}}
{{- .Values.serviceAccount.name | default (include "pinfold.fullname" .) }}
{{- else -}}
{{- fail "serviceAccount.create is false, so serviceAccount.name must name an existing service account" }}
{{- end }}
{{- end }}

{{/* An image with tag and digest. The argument is a list: the context, the repository, the digest. */}}
{{- define "pinfold.image" -}}
{{- $context := index . 0 -}}
{{- printf "%s:%s" (index . 1) ($context.Values.image.tag | default $context.Chart.AppVersion) -}}
{{- with index . 2 }}@{{ . }}{{ end }}
{{- end }}

{{/* Refuses a second installation with any names. `helm template` has no cluster, so nothing is refused. */}}
{{- define "pinfold.oneInstallation" -}}
{{- $policy := lookup "admissionregistration.k8s.io/v1" "ValidatingAdmissionPolicy" "" "pinfold-installation" -}}
{{- if $policy -}}
{{- $annotations := dig "metadata" "annotations" dict $policy | default dict -}}
{{- $name := get $annotations "meta.helm.sh/release-name" -}}
{{- $namespace := get $annotations "meta.helm.sh/release-namespace" -}}
{{- if not $name -}}
{{- fail "this cluster has an installation of Pinfold without Helm, and a cluster has one installation. Remove that installation first (docs/install.md, Uninstall). Or let this release take it over: delete the ValidatingAdmissionPolicy pinfold-installation, and install with --take-ownership" -}}
{{- else if or (ne $name .Release.Name) (ne $namespace .Release.Namespace) -}}
{{- fail (printf "this cluster has the release %s in namespace %s, and a cluster has one installation of Pinfold. Upgrade that release, or uninstall it first" $name $namespace) -}}
{{- end -}}
{{- end -}}
{{- end }}
