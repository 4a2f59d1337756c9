module github.com/kingtide/kingtide/go

go 1.24
