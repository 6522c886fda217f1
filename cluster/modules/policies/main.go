// Enforces the NetworkPolicies of the node's pods: decides, with the reference implementation of Kubernetes' network
// group, on each connection that the node's packet filter puts into a queue. Its own command only runs in a pod.
package main

import (
	"context"
	"flag"
	"os/signal"
	"syscall"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/kube-network-policies/pkg/networkpolicy"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "the file that says how to reach the API server")
	node := flag.String("node", "", "the name of the node")
	queue := flag.Int("queue", 0, "the number of the packet filter's queue")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *kubeconfig, networkpolicy.Config{NodeName: *node, QueueID: *queue}); err != nil {
		klog.Exit(err)
	}
}

// run decides until the context ends.
func run(ctx context.Context, kubeconfig string, config networkpolicy.Config) error {
	address, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(address)
	if err != nil {
		return err
	}
	shared := informers.NewSharedInformerFactory(client, 0)
	controller, err := networkpolicy.NewController(
		client,
		shared.Networking().V1().NetworkPolicies(),
		shared.Core().V1().Namespaces(),
		shared.Core().V1().Pods(),
		nil, nil, nil, nil, // only those of an alpha API use these
		config,
	)
	if err != nil {
		return err
	}
	shared.Start(ctx.Done())
	return controller.Run(ctx)
}
