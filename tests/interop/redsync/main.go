// Does with redsync's mutexes what its input says: a line is a number, a word that is not used, a command and the name of a mutex.
// The answer is a line with the same number. The versions in go.mod are those that Go 1.19 builds, which Debian 12 has.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"
)

func main() {
	var client goredislib.UniversalClient
	if nodes := os.Args[1:]; len(nodes) == 1 {
		client = goredislib.NewClient(&goredislib.Options{Addr: nodes[0]})
	} else {
		client = goredislib.NewClusterClient(&goredislib.ClusterOptions{Addrs: nodes})
	}
	sync := redsync.New(goredis.NewPool(client))
	mutexes := map[string]*redsync.Mutex{}
	fmt.Println("ready")
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		words := strings.Fields(input.Text())
		mutex, known := mutexes[words[3]]
		if !known {
			mutex = sync.NewMutex(words[3], redsync.WithExpiry(10*time.Minute), redsync.WithTries(1))
			mutexes[words[3]] = mutex
		}
		fmt.Println(words[0], answer(mutex, words[2]))
	}
}

func answer(mutex *redsync.Mutex, command string) string {
	switch command {
	case "try":
		return fmt.Sprint(mutex.Lock() == nil)
	case "unlock":
		done, _ := mutex.Unlock()
		return fmt.Sprint(done)
	default:
		return "knows no " + command
	}
}
