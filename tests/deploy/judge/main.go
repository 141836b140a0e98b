// Reads manifests from standard input and says what Kubernetes itself thinks of them: whether its own types can hold them,
// strictly, and what Pod Security admission would answer at the level "restricted".
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	serializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

type judgement struct {
	Kind       string   `json:"kind"`
	Name       string   `json:"name"`
	Error      string   `json:"error,omitempty"`
	Violations []string `json:"violations,omitempty"`
}

func main() {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, rbacv1.AddToScheme, networkingv1.AddToScheme, schedulingv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	decoder := serializer.NewSerializerWithOptions(
		serializer.DefaultMetaFactory, scheme, scheme, serializer.SerializerOptions{Yaml: true, Strict: true})
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks())
	if err != nil {
		panic(err)
	}
	documents := yaml.NewYAMLReader(bufio.NewReader(os.Stdin))
	answers := json.NewEncoder(os.Stdout)
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			panic(err)
		}
		var head metav1.PartialObjectMetadata
		if err := yaml.Unmarshal(document, &head); err != nil || head.Kind == "" {
			continue
		}
		said := judgement{Kind: head.Kind, Name: head.Name}
		object, _, err := decoder.Decode(document, nil, nil)
		if runtime.IsNotRegisteredError(err) {
			said.Error = "not a type of Kubernetes"
		} else if err != nil {
			said.Error = err.Error()
		}
		var template *corev1.PodTemplateSpec
		switch workload := object.(type) {
		case *appsv1.DaemonSet:
			template = &workload.Spec.Template
		case *appsv1.Deployment:
			template = &workload.Spec.Template
		}
		if template != nil {
			level := psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}
			for _, result := range evaluator.EvaluatePod(level, &template.ObjectMeta, &template.Spec) {
				if !result.Allowed {
					said.Violations = append(said.Violations, fmt.Sprintf("%s: %s", result.ForbiddenReason, result.ForbiddenDetail))
				}
			}
		}
		if err := answers.Encode(said); err != nil {
			panic(err)
		}
	}
}
