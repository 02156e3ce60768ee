{{/* The name of a class: the handler, and the platform if it has a name.  Takes a list of both. */}}
{{- define "xenpod.class" -}}
{{- $handler := index . 0 -}}
{{- $platform := index . 1 -}}
{{- if $platform.name -}}{{ $handler }}-{{ $platform.name }}{{- else -}}{{ $handler }}{{- end -}}
{{- end }}

{{/* The names of all classes, as a list in CEL.  It ends here if they or what is said of their handlers cannot be. */}}
{{- define "xenpod.classes" -}}
{{- $names := list -}}
{{- range $platform := .Values.platforms -}}
{{- range .handlers -}}
{{- $name := include "xenpod.class" (list . $platform) -}}
{{- if gt (len $name) 63 -}}
{{- fail (printf "platforms: the class %s is longer than 63, and no namespace could have it as a label" $name) -}}
{{- end -}}
{{- $names = append $names ($name | quote) -}}
{{- end -}}
{{- range $key, $handlers := dict "overheads" (keys (.overheads | default dict)) "ownNamespaces" (.ownNamespaces | default list) -}}
{{- range $handlers -}}
{{- if not (has . $platform.handlers) -}}
{{- fail (printf "platforms: %s: %s is not one of the handlers %s" $key . (join ", " $platform.handlers)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if ne (len $names) (len (uniq $names)) -}}
{{- fail (printf "platforms: two have a class of the same name: %s" (join ", " $names)) -}}
{{- end -}}
[{{ join ", " $names }}]
{{- end }}

{{/* What lets pods ask for the host's processes and IPC that get their zone's, if there are any. */}}
{{- define "xenpod.ownNamespaces" -}}
{{- $names := list -}}
{{- range $platform := .Values.platforms -}}
{{- range .handlers -}}
{{- if has . ($platform.ownNamespaces | default list) -}}
{{- $names = append $names (include "xenpod.class" (list . $platform) | quote) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $names }} || object.spec.runtimeClassName in [{{ join ", " $names }}]{{ end -}}
{{- end }}

{{/* The toleration of a taint that is written as kubectl does, key=value:effect or key:effect. */}}
{{- define "xenpod.toleration" -}}
{{- $parts := regexSplit ":" . -1 -}}
{{- $pair := regexSplit "=" (first $parts) -1 -}}
key: {{ first $pair | quote }}
{{- if and (eq (len $pair) 2) (last $pair) }}
operator: Equal
value: {{ last $pair | quote }}
{{- else }}
operator: Exists
{{- end }}
effect: {{ last $parts }}
{{- end }}

{{/* Metadata of an object of the cluster.  Takes a list of the root and the name. */}}
{{- define "xenpod.metadata" -}}
name: {{ index . 1 | quote }}
{{- with (index . 0).Values.labels }}
labels: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The version of MutatingAdmissionPolicy that the cluster's release has. */}}
{{- define "xenpod.policyVersion" -}}
{{- $release := .Capabilities.KubeVersion.Version -}}
{{- if .Values.assignClass.policyVersion -}}{{ .Values.assignClass.policyVersion }}
{{- else if semverCompare ">=1.36.0-0" $release -}}v1
{{- else if semverCompare ">=1.34.0-0" $release -}}v1beta1
{{- else -}}v1alpha1
{{- end -}}
{{- end }}

{{/* Which pods get the class of their namespace, and how: of both kinds of policy. */}}
{{- define "xenpod.assign" -}}
matchConstraints:
  namespaceSelector:
    matchExpressions:
      - key: xenpod.dev/runtime-class
        operator: Exists
  resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE]
      resources: [pods]
matchConditions:
  - name: names-no-class
    expression: "!has(object.spec.runtimeClassName)"
mutations:
  - patchType: JSONPatch
    jsonPatch:
      expression: '[JSONPatch{op: "add", path: "/spec/runtimeClassName", value: namespaceObject.metadata.labels["xenpod.dev/runtime-class"]}]'
{{- end }}

{{/* Metadata of an object of the labeller, with its own label, which the chart's may not replace. */}}
{{- define "xenpod.labeller" -}}
name: xenpod-labels
namespace: {{ .Release.Namespace | quote }}
labels: {{- merge (dict "app.kubernetes.io/name" "xenpod-labels") .Values.labels | toYaml | nindent 2 }}
{{- end }}

{{/* The labeller's image; a digest goes before the tag. */}}
{{- define "xenpod.image" -}}
{{- $image := .Values.labeller.image -}}
{{- if $image.digest -}}{{ $image.repository }}@{{ $image.digest }}
{{- else -}}{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* Its pull policy.  No registry is asked for an image that was imported on the nodes, unless a digest says which it is. */}}
{{- define "xenpod.pullPolicy" -}}
{{- $image := .Values.labeller.image -}}
{{- if $image.pullPolicy -}}{{ $image.pullPolicy }}
{{- else if and (hasPrefix "localhost/" $image.repository) (not $image.digest) -}}Never
{{- else -}}IfNotPresent
{{- end -}}
{{- end }}

{{/* Where the labeller and the driver run: on the nodes of all platforms, preferably those kept for add-ons. */}}
{{- define "xenpod.affinity" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      {{- range .Values.platforms }}
      - matchExpressions:
          {{- range $key, $value := .labels }}
          - key: {{ $key | quote }}
            operator: In
            values: [{{ $value | quote }}]
          {{- end }}
      {{- end }}
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      preference:
        matchExpressions:
          {{- $label := regexSplit "=" .Values.labeller.addonsLabel 2 }}
          - key: {{ first $label | quote }}
            {{- if eq (len $label) 2 }}
            operator: In
            values: [{{ last $label | quote }}]
            {{- else }}
            operator: Exists
            {{- end }}
{{- end }}

{{/* The taints that the labeller and the driver tolerate. */}}
{{- define "xenpod.tolerations" -}}
- key: CriticalAddonsOnly
  operator: Exists
{{- $taints := list }}
{{- range .Values.platforms }}{{ $taints = concat $taints (.taints | default list) }}{{ end }}
{{- range uniq $taints }}
- {{- include "xenpod.toleration" . | nindent 2 }}
{{- end }}
{{- with .Values.labeller.tolerations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Metadata of an object of the driver, with its own label, which the chart's may not replace. */}}
{{- define "xenpod.driver" -}}
name: xenpod-dra
namespace: {{ .Release.Namespace | quote }}
labels: {{- merge (dict "app.kubernetes.io/name" "xenpod-dra") .Values.labels | toYaml | nindent 2 }}
{{- end }}

{{/* The version of resource.k8s.io that the cluster's release has. */}}
{{- define "xenpod.claimsVersion" -}}
{{- $release := .Capabilities.KubeVersion.Version -}}
{{- if semverCompare ">=1.34.0-0" $release -}}resource.k8s.io/v1
{{- else if semverCompare ">=1.33.0-0" $release -}}resource.k8s.io/v1beta2
{{- else -}}
{{- fail (printf "driver and claims: resource.k8s.io of Kubernetes %s is older than v1beta2, which came with 1.33" $release) -}}
{{- end -}}
{{- end }}

{{/* Which pods claim zone memory, and of what size: of both policies. */}}
{{- define "xenpod.claimants" -}}
{{- $overheads := list -}}
{{- $unlimited := list -}}
{{- range $platform := .Values.platforms -}}
{{- range $handler := .handlers -}}
{{- $class := include "xenpod.class" (list $handler $platform) -}}
{{- $own := get ($platform.overheads | default dict) $handler | default dict -}}
{{- $overheads = append $overheads (printf "%q: %q" $class (toString (get ($platform.overhead | default dict) "memory" | default "96Mi"))) -}}
{{- $unlimited = append $unlimited (printf "%q: %q" $class (toString (get $own "memory" | default "256Mi"))) -}}
{{- end -}}
{{- end -}}
{{- $rooms := list -}}
{{- $templates := list -}}
{{- range .Values.claims.sizes -}}
{{- $rooms = append $rooms (sub (sub . 5) (div (add . 127) 128)) -}}
{{- $templates = append $templates (printf "\"xenpod-zone-%dmi\"" (int .)) -}}
{{- end -}}
matchConstraints:
  namespaceSelector:
    matchLabels:
      xenpod.dev/zone-claims: "true"
  resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE]
      resources: [pods]
variables:
  - name: ours
    expression: 'has(object.spec.runtimeClassName) && object.spec.runtimeClassName in {{ include "xenpod.classes" . }}'
  - name: starting
    expression: 'object.spec.?initContainers.orValue([])'
  - name: sidecars
    expression: 'variables.starting.filter(one, one.?restartPolicy.orValue("") == "Always").map(one, int(quantity(one.?resources.?limits[?"memory"].orValue("0")).asApproximateFloat())).sum()'
  - name: limits
    expression: 'int(quantity(object.spec.?resources.?limits[?"memory"].orValue("0")).asApproximateFloat()) > 0 ? int(quantity(object.spec.?resources.?limits[?"memory"].orValue("0")).asApproximateFloat()) : variables.sidecars + [object.spec.containers.map(one, int(quantity(one.?resources.?limits[?"memory"].orValue("0")).asApproximateFloat())).sum(), ([0] + variables.starting.filter(one, !(one.?restartPolicy.orValue("") == "Always")).map(one, int(quantity(one.?resources.?limits[?"memory"].orValue("0")).asApproximateFloat()))).max()].max()'
  - name: noted
    expression: 'object.metadata.?annotations[?"xenpod.dev/memory"].orValue("")'
  - name: overhead
    expression: 'int(quantity({ {{- join ", " $overheads -}} }[object.spec.runtimeClassName]).asApproximateFloat())'
  - name: unlimited
    expression: 'int(quantity({ {{- join ", " $unlimited -}} }[object.spec.runtimeClassName]).asApproximateFloat())'
  - name: need
    expression: '((variables.noted != "" ? int(quantity(variables.noted).asApproximateFloat()) : variables.limits > 0 ? variables.limits + variables.overhead : variables.unlimited) + 1048575) / 1048576'
  - name: own
    expression: 'object.spec.?resourceClaims.orValue([]).filter(claim, claim.name == "zone")'
  - name: rooms
    expression: '[{{ join ", " $rooms }}]'
  - name: templates
    expression: '[{{ join ", " $templates }}]'
  - name: fitting
    expression: 'variables.rooms.filter(room, room >= variables.need)'
  - name: template
    expression: 'size(variables.own) > 0 ? variables.own[0].?resourceClaimTemplateName.orValue("") : size(variables.fitting) > 0 ? variables.templates[variables.rooms.indexOf(variables.fitting[0])] : ""'
{{- end }}
