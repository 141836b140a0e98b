// The Collector's own k8sobjects receiver: options as JSON on stdin, records as OTLP JSON on stdout.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/open-telemetry/opentelemetry-collector-contrib/receiver/k8sobjectsreceiver"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/receiver"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	var options map[string]any
	must(json.NewDecoder(os.Stdin).Decode(&options))
	factory := k8sobjectsreceiver.NewFactory()
	config := factory.CreateDefaultConfig()
	must(confmap.NewFromStringMap(options).Unmarshal(config))
	must(component.ValidateConfig(config))
	sink, err := consumer.NewLogs(func(_ context.Context, logs plog.Logs) error {
		raw, err := (&plog.JSONMarshaler{}).MarshalLogs(logs)
		must(err)
		fmt.Println(string(raw))
		return nil
	})
	must(err)
	settings := receiver.Settings{
		ID:                component.NewID(factory.Type()),
		TelemetrySettings: componenttest.NewNopTelemetrySettings(),
		BuildInfo:         component.NewDefaultBuildInfo(),
	}
	one, err := factory.CreateLogsReceiver(context.Background(), settings, config, sink)
	must(err)
	must(one.Start(context.Background(), componenttest.NewNopHost()))
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	<-stop
	_ = one.Shutdown(context.Background())
}
